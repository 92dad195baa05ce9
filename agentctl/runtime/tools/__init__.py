"""Tools of agents: functions, memories and delegation."""

-- What the models of a run were shown, for SQLite.

-- A JSON object: the requests of the run by reference to stored messages, with what the providers
-- have reported (agentctl/runs/log/requests.py). NULL for none, and for runs before this
-- migration. Reads of runs do not select it.
ALTER TABLE runs ADD COLUMN requests TEXT;

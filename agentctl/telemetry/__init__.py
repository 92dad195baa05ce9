"""Export of traces and metrics with OpenTelemetry; imported only if that is configured."""

"""When does a second device pay? `model`, `result` and `figure` import no MXNet."""

"""One generation as a state machine: it decides, forecasts and learns. It knows no hooks and no pipelines."""

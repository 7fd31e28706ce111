"""The services of one machine: Prefect server, MLflow server, work pools, deployments, workers;
`rl-train up`."""

"""The train stack: FSDPBackend owns model, optimiser and checkpoint; TrainStack owns loss, backward and step."""

"""The train stack: FSDPBackend owns model, optimizer and checkpoint; TrainStack owns loss, backward
and step."""

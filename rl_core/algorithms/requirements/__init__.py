"""What algorithms need of trainers and recipes, checked before any start."""

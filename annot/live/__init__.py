"""Changes in a running training: applied at the first call of a model, an optimizer or a loader, and measured."""

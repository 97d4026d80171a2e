"""Feature pipelines: from the rows of a model's input to the features that its weights refer to."""

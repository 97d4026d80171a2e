"""What callers of a training, a batch prediction and the REST API can set, declared once."""

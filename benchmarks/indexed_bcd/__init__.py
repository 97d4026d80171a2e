"""Linear SVM by indexed block coordinate descent: time and reads to a test error."""

"""Indexed block coordinate descent: linear SVM with truncated loss on selected rows."""

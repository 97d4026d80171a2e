"""Workers that run training: the driver loop, and pools and groups of workers."""

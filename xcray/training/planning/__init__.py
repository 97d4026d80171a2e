"""Deployment planning: pods, memory, disk and core hours for a training or a service."""

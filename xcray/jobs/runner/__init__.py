"""The process that runs one attempt of a job."""

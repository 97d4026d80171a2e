"""The tables of the job store and the operations on them."""

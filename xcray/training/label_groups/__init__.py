"""Groups of similar labels: clustered, trained as further labels, weighed on held-out rows."""

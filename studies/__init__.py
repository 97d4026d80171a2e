"""Studies: measurements that answered one question once, see README.md."""

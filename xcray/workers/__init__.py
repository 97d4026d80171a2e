"""Where training runs: one loop (`drive`), and pools of workers: serial, threads, Ray."""

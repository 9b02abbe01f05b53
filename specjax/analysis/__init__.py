"""What the papers predict (theory), what a run measured (metrics, intervals), and how it is shown."""

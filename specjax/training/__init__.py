"""Training a target and distilling its drafts: losses, windows, the one loop, checkpoints."""

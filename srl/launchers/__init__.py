"""How the workers of an experiment come to life: stepped in turn (serial), or one process each (local)."""

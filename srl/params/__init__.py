"""The params edge: the newest weights in shared memory (shm), and as files (file)."""

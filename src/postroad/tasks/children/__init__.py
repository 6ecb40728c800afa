"""Child processes of tasks: a zygote that forks them, monitors that watch one each, and what runs inside."""

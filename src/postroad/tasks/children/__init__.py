"""Child processes of tasks: a zygote that forks them, keepers that watch one each, and what runs inside."""

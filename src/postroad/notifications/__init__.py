"""Chat notifications: what an offline user missed is stored once and pushed once to each device."""

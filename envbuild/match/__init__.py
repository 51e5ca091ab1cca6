"""What a run needs: its manifest against the profiles, decided with a reason for each part."""

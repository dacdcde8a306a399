"""Has something become slower? A short, fixed set of measurements beside the last result that was saved."""

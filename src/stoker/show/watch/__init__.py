"""One screen about living or ended runs. All but `app.py` is plain data and text."""

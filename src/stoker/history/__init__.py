"""The history of a run, read from its files alone: what every display of a run is made of."""

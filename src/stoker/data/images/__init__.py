"""One image: decode untrusted bytes, encode what is stored, cut what a crop needs out of a JPEG."""

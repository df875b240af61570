"""Where bytes live: folders, object stores and web servers, and a cache of what was fetched."""

"""What a person sees. Reads run directories, never a live object."""

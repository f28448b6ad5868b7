"""Those who perform duties: the loop that makes facts durable, and the simulator."""

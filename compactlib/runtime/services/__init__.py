"""What has a thread: turns, agendas, and the services that do a store's work in the background."""

"""Workers on Ray: sessions, local clusters, actors, pools and worker groups."""

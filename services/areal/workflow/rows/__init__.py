"""Rows of datasets as chats: the normal form of messages and tools, the shapes of rows, their rendering."""

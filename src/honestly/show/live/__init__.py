"""A local page that shows a running study or federation: files and a database in, server-sent events out."""

"""Sources: brokers from which ``rankfall collect`` reads the records that sinks have written."""

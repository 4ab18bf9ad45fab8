"""Tables in a catalog service that implements Apache Paimon's REST protocol."""

"""Requirements to exact wheels: resolvers, reasons why something cannot be locked, files, downloads, identity."""

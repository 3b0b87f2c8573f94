"""Tables of the papers, each number measured by recorded runs beside the published one: `deepnet report`."""

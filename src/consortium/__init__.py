"""consortium: several sites train one model together, and no raw record leaves a site."""

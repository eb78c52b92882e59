"""The package inside the servers people run, over real HTTP."""

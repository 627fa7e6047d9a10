"""The parts of the HTML report: each turns a record of results into one piece of markup, see `html_report`."""

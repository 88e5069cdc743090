"""`annot try`: runs of a program without and with changes, and which change pays."""

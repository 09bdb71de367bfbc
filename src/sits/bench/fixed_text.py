"""The text whose mean token loss is compared between rounds: the same words in every run and version."""

FIXED_TEXT = (
    "A ferry crosses the strait eleven times a day. In the morning it carries bread, newspapers and the children "
    "of the eastern islands to school; at noon it waits for the tide; in the evening it brings everyone home "
    "again. The captain has kept a log for thirty years. Each line holds the hour, the wind, the number of "
    "passengers and one remark. Most remarks are short: fog until nine, engine repaired, two seals near the pier."
    " When the company asked him why he did not use the new computer, he answered that a machine forgets nothing "
    "but understands little, and that he would like to be able to read his own years. Later an engineer copied "
    "all the lines into a table, and it turned out that the old log predicted delays better than the timetable "
    "did, because the captain had always written down the one thing that mattered on that day. The table is now "
    "on the wall of the office, next to a map of the strait and a clock that runs four minutes fast."
)

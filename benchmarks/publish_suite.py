"""Record the hash and the outline of the suite for which results are published.

honestly stress --make-suite core-1 --out made
python benchmarks/publish_suite.py core-1 made/core-1.npz
"""

import argparse
import json
from pathlib import Path

from honestly.studies.recordings import read
from honestly.studies.suites import load
from honestly.studies.suites.spec import content_hash, outline

PLACE = Path(__file__).parents[1] / "src" / "honestly" / "studies" / "suites" / "published.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("recording", type=Path)
    args = parser.parse_args()
    suite, courses = load(args.suite), read(args.recording)
    assert [course.name for course in courses] == [recipe.name for recipe in suite.courses], "another suite's courses"
    known = json.loads(PLACE.read_text())
    known[suite.name] = {"spec": suite.hash, "content": content_hash(courses), "outline": outline(courses)}
    PLACE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()

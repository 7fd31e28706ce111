#!/bin/bash
cd /app && sort -n sizes.txt | tail -1 > largest.txt

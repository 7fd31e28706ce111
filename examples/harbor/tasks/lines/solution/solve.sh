#!/bin/bash
cd /app && wc -l < names.txt > count.txt

-- Prefect's database is made by the image; each of the two keeps its own table of migrations.
CREATE DATABASE mlflow;
